"""One offline HTML file out of findings; consumes values and computes nothing but what a page has to look like."""

from ckplan.report.html.page import render

__all__ = ["render"]
