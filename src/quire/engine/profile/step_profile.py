"""The profile of a step by whatever runtime would serve the model. No torch at import.

compiled_profile.py profiles the compiled decoder, torch_profile.py PyTorch's modules.
"""

from __future__ import annotations

import logging

from quire.config import EngineConfig
from quire.core.layer_spec import UnsupportedModelError
from quire.engine.profile.compiled_profile import profile_compiled
from quire.engine.profile.profile_result import Profile, StepShape
from quire.engine.startup.compiled_start import open_stored, resolve_for_compiled
from quire.engine.startup.torch_import import import_torch

logger = logging.getLogger(__name__)


def profile_step(config: EngineConfig, step: StepShape) -> Profile:
    """Load the model, run the step and time it. Raises CheckpointError or ConfigError."""
    try:
        resolved = resolve_for_compiled(config)
        step.check(resolved.model_config)
        return profile_compiled(resolved, open_stored(resolved), step)
    except UnsupportedModelError as reason:
        logger.info("this profile needs PyTorch: %s", reason)
    import_torch()
    from quire.engine.profile.torch_profile import profile_with_torch

    return profile_with_torch(config, step)
