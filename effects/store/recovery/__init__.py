"""Recovery: what workers remember against what the database knows after commits were lost."""
