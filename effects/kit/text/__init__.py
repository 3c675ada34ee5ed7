"""Text made fit to be stored, shown or logged, and what a mistyped name may have meant. Imports nothing of effects."""
