"""Export of stored datasets to the formats of other projects.

    export("demo/pendulum", "hdf5", "./pendulum")

A format is a file in `formats/`, and `datasets_rl.exporting.base` has the contract. The public names are listed in
`__init__.pyi`. Each is imported when it is first used, so that the help of a command that names the formats does not import numpy.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
