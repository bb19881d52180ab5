"""A small data set, made by the real command."""

from support.command_line import command as command
from support.command_line import data as data
