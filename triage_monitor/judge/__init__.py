"""The decisions: merged summary -> indicators -> stage -> parameter change. Pure values, no clock, no I/O."""
