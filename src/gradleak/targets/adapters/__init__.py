"""LoRA adapters on a target, through PEFT: the base weights stay frozen, clients train and send the adapters.

lora       `Lora`: the settings of a fresh adapter, one notation everywhere
adapter    `Adapter`, `AdaptedModule`: where the adapters of a target are, and what their parameters are called
injection  put PEFT's layers into a model
fresh      a fresh adapter, drawn from the public model seed and trained on public text if so asked
folder     an adapter from a directory with `adapter_config.json`

Adapter parameters have the names of PEFT's `get_peft_model_state_dict`, in `Target.parameters` and in updates; those of
the base model keep their own. PEFT is an optional extra, imported by `injection` alone.
"""

from gradleak.targets.adapters.adapter import AdaptedModule, Adapter
from gradleak.targets.adapters.lora import Lora

__all__ = ["AdaptedModule", "Adapter", "Lora"]
