"""Who is signed in to the stand-alone dashboard."""
