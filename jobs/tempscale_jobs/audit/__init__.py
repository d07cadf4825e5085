"""`tempscale audit`, the main job."""
