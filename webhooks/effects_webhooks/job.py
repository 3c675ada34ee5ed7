"""The job type."""


def job_types(app):
    return []
