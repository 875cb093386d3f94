"""A recipe for a file of your own: what the file is, which settings suit it, and why."""

from transduce.automatic.choose import Choice, choose
from transduce.automatic.found import Found
from transduce.automatic.inspect import inspect
from transduce.automatic.machine import Machine, this_machine
from transduce.automatic.write import commented

__all__ = ["Choice", "Found", "Machine", "choose", "commented", "inspect", "this_machine"]
