"""`manage.py effects`."""
