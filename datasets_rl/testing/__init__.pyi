from .samplers import SamplerContract as SamplerContract
from .storages import StorageContract as StorageContract
from .stored_data import Model as Model
from .stored_data import Trajectory as Trajectory
from .stored_data import trajectory as trajectory
from .stored_data import write_dataset as write_dataset
from .writers import WriterContract as WriterContract
from .writers import WriterStateContract as WriterStateContract
