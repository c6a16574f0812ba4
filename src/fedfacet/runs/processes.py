"""Several processes that were started together: those that serve rank 0, and what they may not be started for."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from fedfacet.config import make
from fedfacet.entry import num_started
from fedfacet.errors import ConfigError


def serve(config: DictConfig) -> bool:
    """Run clients for rank 0, if this is another rank of ``engine=distributed``; tell whether it was.

    Such a process takes its configuration from rank 0, so that nothing is decided twice, and leaves nothing on the disk.

    Raises:
        ConfigError: as ``check_started``.
    """
    from fedfacet.build import build, settle

    check_started(config)
    engine = make(config.engine)
    if engine.rank == 0:
        return False
    settings = OmegaConf.create(engine.share())
    settle(settings)
    build(settings, Path(settings.paths.output_dir)).engine.serve()
    return True


def check_started(config: DictConfig) -> None:
    """Refuse to run an engine of one process where torchrun started several.

    Raises:
        ConfigError: naming the engine.
    """
    engine = make(config.engine)
    if (started := num_started()) > 1 and not engine.spans_processes:
        raise ConfigError(
            f"Expected engine=distributed where torchrun starts {started} processes, but got {engine.name}: add it, or start "
            "the script with python."
        )


def check_alone(config: DictConfig) -> None:
    """Refuse to have several processes run the cells of a sweep together, which could not agree on what is left to do."""
    processes = num_started()
    if make(config.engine).spans_processes:
        from fedfacet.parallel.place import find_place

        processes = find_place().num_ranks
    if processes > 1:
        raise ConfigError(
            f"Expected a process per cell of a sweep, but {processes} were started together: give the same command in as many "
            "processes as there is room for, with another engine than distributed."
        )
