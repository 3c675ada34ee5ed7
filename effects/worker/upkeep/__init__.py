"""The services beside the dispatcher: heartbeat, rescue, schedules, notifications."""
