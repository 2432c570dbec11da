"""What each instruction makes of what is known of its operands."""
