"""The command line in this process, a small data set, a run of three steps, its exported model."""

from support.command_line import command as command
from support.command_line import data as data
from support.command_line import finished_run as finished_run
from support.command_line import model as model
from support.command_line import outlast as outlast
from support.command_line import train as train
