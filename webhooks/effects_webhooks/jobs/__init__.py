"""The job types of webhooks: deliver, fan out and compose."""
