"""Pages of the dashboard about e-mail: messages, templates, suppressions."""
