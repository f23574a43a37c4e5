"""The state of an algorithm's object: its published part, the part kept for a run that goes on, and the rest."""
