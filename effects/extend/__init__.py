"""The API for packages, by subject: all that a package may import besides the public names of `effects`.

The built-in packages use nothing else. Modules and names that are not here may change without notice.
"""
