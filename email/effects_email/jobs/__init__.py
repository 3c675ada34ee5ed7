"""The job types of e-mail: send and compose."""
