"""What is left of the installation when another project's files overwrite the package `effects`: it says so."""
