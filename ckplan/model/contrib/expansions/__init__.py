"""What each operator of com.microsoft is in standard operators; modules here are found by themselves."""
