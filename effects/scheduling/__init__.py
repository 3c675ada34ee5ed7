"""Schedules: their declaration, the times of their slots, and the jobs that due slots enqueue."""
