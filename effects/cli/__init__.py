"""The `effects` command. Each theme is a module; `main` joins them with those of installed packages."""
