"""`tempscale evaluate`: downstream scores under each temperature."""
