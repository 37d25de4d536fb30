"""What people get to see: tables for the terminal, the demo's figure, and the page of `samplr report`.

This module imports matplotlib, which takes a second: import it where it is used.
"""

from samplr.report.colours import COLOURS as COLOURS
from samplr.report.colours import GREY as GREY
from samplr.report.demo import demo_table as demo_table
from samplr.report.demo import icy_road_figure as icy_road_figure
from samplr.report.evaluation import evaluation_table as evaluation_table
from samplr.report.evaluation import transfer_table as transfer_table
