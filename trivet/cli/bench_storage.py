"""`trivet bench storage`: what the storage below a folder can do, kept as the limit of later loads."""

from __future__ import annotations

from pathlib import Path

import click

from trivet.cli.options import Size


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--size", type=Size(), default="1GiB", show_default=True, help="Of the file that is written and read")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Samples of each way of reading")
@click.option("--threads", type=click.IntRange(1), help="CPUs to read with  [default: cores of the NUMA node]")
@click.option("--json", "as_json", is_flag=True, help="Print the speeds as JSON")
def bench_storage(folder: Path | None, size: int, repeats: int, threads: int | None, as_json: bool) -> None:
    """Measure how fast the storage below FOLDER, by default the cache, can be read, in every way a load may read.

    The best of them is kept, and `trivet load` says what share of it a load reached. Where fio is installed it reads
    the same file in turn.
    """
    import msgspec

    from trivet.base.settings import read_settings
    from trivet.driver.devices.table import open_device
    from trivet.driver.readers.placement import read_placement_facts
    from trivet.framework.model.loading.storage_limit import remember
    from trivet.serve.bench.storage import limit_of, measure_storage, table

    settings = read_settings()
    if folder is None:
        folder = settings.cache_dir
        folder.mkdir(parents=True, exist_ok=True)
    num_cpus = len(open_device("cpu", read_placement_facts(), threads).cpus)
    speeds = measure_storage(
        folder, size, threads=num_cpus, repeats=repeats, tell=lambda line: click.echo(line, err=True)
    )
    limit = limit_of(speeds)
    remember(limit, folder, settings.cache_dir)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"limit": limit, "speeds": speeds})))
        return
    click.echo(table(speeds))
    click.echo(f"limit of {folder}: {limit.bytes_per_s / 1e9:.2f} GB/s by {limit.engine}, kept for trivet load")
