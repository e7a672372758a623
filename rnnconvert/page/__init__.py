"""The report as one HTML page: made of the JSON documents alone, so of a saved report too.

A report is a stranger's file like a model is: every text in it is escaped, whatever it holds.
"""
