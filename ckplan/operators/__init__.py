"""What is known of single operators, whoever defines them; below everything that works on graphs of them."""
