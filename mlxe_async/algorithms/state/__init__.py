"""What an algorithm's object holds: what is published of it, what is kept for a run that goes on, and the rest."""
