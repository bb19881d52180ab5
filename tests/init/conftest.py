"""The command line in this process and in processes of its own."""

from support.command_line import command as command
from support.command_line import outlast as outlast
