"""What is watched beside the schedule as long as a run lasts: status, CPU time, slow executors, deaths."""
