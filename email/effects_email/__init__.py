"""Templated e-mail: written in your own transaction, sent once, or known not to be."""
