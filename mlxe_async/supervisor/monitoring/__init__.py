"""What is watched beside the schedule as long as a run lasts: status, learner's core, slow executors, a late loop."""
