"""A page on which the digits are learnt in the browser, with a memory plan and without, side by side."""
