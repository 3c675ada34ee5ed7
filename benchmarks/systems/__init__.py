"""The systems that are compared: each fills its queue and, run as a module, is its worker."""
