"""Find the schedule with the least bubble and prove how far it can be from the best."""
