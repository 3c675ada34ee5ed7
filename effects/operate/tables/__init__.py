"""Operators' queries and actions: lists, evidence, actions, resolutions, audit, figures."""
