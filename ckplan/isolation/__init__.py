"""What is foreign runs apart: processes with limits of memory and time, and folders that nobody is left to clean up."""
