"""What attempts came to, written in batches: releases, outcomes, numbers."""
