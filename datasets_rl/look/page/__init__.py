"""Viewer of stored datasets: a page in the browser, served on loopback or exported as a file.

Panel                  reads a stored dataset, a single episode at a time
Pairs                  what differs between two datasets, and in a pair of their episodes
distributions, curves  pure functions from arrays to histograms and curves
documents              the addresses of the page, and the JSON document of each
server, report         both answer with these documents: over HTTP, or within an HTML file
assets                 the page, which needs neither a build step nor a network
"""

from datasets_rl.look.page.pairs import Pairs
from datasets_rl.look.page.panel import Panel
from datasets_rl.look.page.report import report_page
from datasets_rl.look.page.server import ViewServer

__all__ = ["Pairs", "Panel", "ViewServer", "report_page"]
