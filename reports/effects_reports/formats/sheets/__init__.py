"""What a workbook has beside its rows: how columns look, a row of totals, a cover."""
