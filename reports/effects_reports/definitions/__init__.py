"""Reports as code: their rows, params, columns and limits, and the registry that knows them."""
