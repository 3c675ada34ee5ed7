"""What operators look at: numbers, metrics, checks with advice, the evidence of one effect. Changes nothing."""
