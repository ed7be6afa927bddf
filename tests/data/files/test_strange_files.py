"""Files that are odd: each is read whole or refused with its name, never read in part."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rlvlm.data.config import SourceConfig
from rlvlm.data.media import Picture
from rlvlm.data.sources import Source, open_source
from rlvlm.errors import DataError
from tests.data.helpers import png, write_jsonl


def opened(path: Path | str) -> Source:
    return open_source(SourceConfig(path=str(path)))


def problems(source: Source) -> list[str]:
    return [str((source[index] or {})["problem"]) for index in range(len(source))]


@pytest.mark.parametrize(
    ("split", "read"),
    [
        ("train", ["train-00000-of-00002", "train-00001-of-00002"]),
        ("test", ["test"]),
        ("testmini", ["testmini"]),
        ("val", ["val_0", "val_1"]),
        ("dev", ["dev-a.v2"]),
        ("validation", ["validation/part"]),
    ],
)
def test_a_split_is_a_name_and_not_a_prefix(split: str, read: list[str], tmp_path: Path) -> None:
    names = ["train-00000-of-00002", "train-00001-of-00002", "test", "test-mini", "testmini", "val_0", "val_1", "valid"]
    for name in (*names, "dev-a.v2", "developers", "validation/part"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_jsonl(tmp_path / f"{name}.jsonl", [{"problem": name, "answer": "x"}])
    assert problems(opened(f"{tmp_path}@{split}")) == read
    with pytest.raises(DataError, match=r"of split 'tes'; it holds dev"):
        opened(f"{tmp_path}@tes")


def test_a_description_beside_the_data_is_no_data(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"problem": "q", "answer": "x"}])
    (tmp_path / "dataset_info.json").write_text('{"a": {"file_name": "a.jsonl"}}')
    assert problems(opened(tmp_path)) == ["q"]


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


ROW = json.dumps({"problem": "what colour?", "answer": "red"}).encode()


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        *(("jfif", "JPEG"), ("jpe", "JPEG"), ("JPG", "JPEG"), ("avif", "AVIF"), ("jp2", "JPEG2000"), ("webp", "WEBP")),
        *(("tga", "TGA"), ("ico", "ICO"), ("apng", "PNG"), ("seg.Png", "PNG"), ("picture", "PNG"), ("data", "JPEG")),
    ],
)
def test_a_tar_s_pictures_may_have_any_suffix(suffix: str, kind: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (56, 56), (200, 30, 30)).save(buffer, kind)
    record = opened(tar(tmp_path / "a.tar", {f"0.{suffix}": buffer.getvalue(), "0.json": ROW, "0.cls": b"5"}))[0]
    assert record is not None
    (picture,) = record["images"]
    assert Picture(picture).size[0] > 0


@pytest.mark.parametrize("name", ["0.mp4", "0.left.WEBM", "0.wav"])
def test_a_tar_s_video_is_a_fault_of_its_row(name: str, tmp_path: Path) -> None:
    source = opened(tar(tmp_path / "a.tar", {"0.json": ROW, name: b"xx", "1.json": ROW}))
    with pytest.raises(DataError, match=rf"row 0: its member '\{name[1:]}' is a video or sound"):
        source[0]
    assert source[1] is not None


@pytest.mark.parametrize("behind", ['[{"problem": "q2", "answer": "b"}]', '{"problem": "q2"}', ", 1]", "x"])
@pytest.mark.parametrize("gap", ["", "\n", " " * 3_000_000])
def test_text_behind_a_json_array_is_refused(behind: str, gap: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"problem": "q", "answer": "a"}]' + gap + behind)
    with pytest.raises(DataError, match=r"a\.json: .* stands behind the end of the JSON array"):
        opened(path)


def test_blanks_behind_a_json_array_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"problem": "q", "answer": "a"}]\n\t \n')
    assert problems(opened(tmp_path / "a.json")) == ["q"]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_dataset_info_is_named_with_the_sources_to_use(indent: int | None, tmp_path: Path) -> None:
    entries = {
        "mllm": {
            "file_name": "mllm.json",
            "formatting": "sharegpt",
            "columns": {"messages": "dialog", "images": "pics"},
        },
        "hub": {"hf_hub_url": "owner/name"},
    }
    path = tmp_path / "dataset_info.json"
    path.write_text(json.dumps(entries, indent=indent))
    with pytest.raises(DataError) as raised:
        opened(path)
    for piece in (
        "LLaMA-Factory's list",
        f"mllm: {{path: {tmp_path}/mllm.json, columns: {{messages: dialog, images: pics}}}}",
    ):
        assert piece in str(raised.value)
    assert "hub: {path: owner/name@train}" in str(raised.value)


def test_a_yaml_of_data_sets_is_named_with_the_sources_to_use(tmp_path: Path) -> None:
    path = tmp_path / "rec.yaml"
    path.write_text("datasets:\n  - json_path: a.json\n  - json_path: b.jsonl\n    sampling_strategy: first:50\n")
    with pytest.raises(DataError, match=r"VLM-R1's list .* \[\{path: a.json\}, \{path: b.jsonl, limit: 50\}\]"):
        opened(path)
    path.write_text("model: 3\n")
    with pytest.raises(DataError, match="a YAML file holds no rows"):
        opened(path)


def test_an_object_that_holds_its_rows_under_a_key_is_refused_with_the_key(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"info": {}, "annotations": [{"problem": "q"}]}, indent=1))
    with pytest.raises(DataError, match="one JSON object .* list under 'annotations'"):
        opened(tmp_path / "a.json")
    write_jsonl(tmp_path / "b.json", [{"problem": "q", "answer": "a"}] * 2)
    assert problems(opened(tmp_path / "b.json")) == ["q", "q"], "JSON lines may be called .json"


def late_chunk(content: bytes, kind: bytes, body: bytes) -> bytes:
    at = content.rindex(b"IEND") - 4
    chunk = struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return content[:at] + chunk + content[at:]


@pytest.mark.parametrize("body", [b"no exif here", b"", b"II*\0", b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff"])
def test_an_exif_chunk_behind_the_pixels_that_is_none_turns_nothing(body: bytes) -> None:
    picture = Picture(late_chunk(png((56, 28)), b"eXIf", body))
    assert picture.size == picture.decode().size == (56, 28)


@pytest.mark.parametrize(
    "kind", ["DDS", "AVIF", "JPEG2000", "TGA", "ICO", "GIF", "TIFF", "WEBP", "PNG", "JPEG", "BMP", "PCX"]
)
def test_broken_pictures_of_every_kind_raise_data_errors_alone(kind: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (48, 48), (1, 2, 3)).save(buffer, kind)
    whole = bytearray(buffer.getvalue())
    for place in range(0, min(len(whole), 200), 3):
        broken = bytearray(whole)
        broken[place] ^= 0xFF
        for content in (bytes(broken), bytes(broken[: len(broken) // 2])):
            for look in (lambda picture: picture.size, lambda picture: picture.decode()):
                try:
                    look(Picture(content, origin="file, row 1"))
                except DataError as error:
                    told = str(error)
                    if not told.startswith("file, row 1: "):
                        raise


@pytest.mark.parametrize("raised", [NotImplementedError("x"), KeyError(3), AttributeError("y"), ZeroDivisionError()])
def test_whatever_pillow_raises_is_a_fault_of_the_row(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise raised

    monkeypatch.setattr(Image, "open", fails)
    with pytest.raises(DataError, match="row 1: picture of .* is no picture that can be read"):
        Picture(png(), origin="row 1").decode()


def tar_header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """A header by hand, with a right checksum whatever it states."""
    header = bytearray(512)
    header[: len(name)] = name
    header[124 : 124 + len(size)] = size
    header[156:157] = kind
    header[257:265] = b"ustar\x0000"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


END = bytes(1024)
SMALL = b"00000000001\0"
NEGATIVE = b"\xff" * 11 + b"\x00"  # base 256: -256


def pax(content: bytes) -> bytes:
    return tar_header(b"PaxHeader", b"%011o\0" % len(content), b"x") + content.ljust(512, b"\0")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (tar_header(b"a.txt", NEGATIVE) + END, "size of -256 bytes"),
        (tar_header(b"a.txt", b"-0000001000\0") + END, "size of -512 bytes"),
        (tar_header(b"a.txt", b"\x80" + b"\xff" * 11) + END, "cut off inside member 'a.txt'"),
        (pax(b"0 path=a.txt\n") + tar_header(b"x", SMALL) + END, "states a length of '0'"),
        (pax(b"-5 path=a.txt\n") + tar_header(b"x", SMALL) + END, "states a length of '-5'"),
        (pax(b"99 path=a.txt\n") + tar_header(b"x", SMALL) + END, "states a length of '99'"),
        (pax(b"\xb2 path=a.txt\n") + tar_header(b"x", SMALL) + END, "states a length of"),
        (pax(b"x") + tar_header(b"x", SMALL) + END, "states a length of 'x'"),
        (pax(b"11 size=-1\n") + tar_header(b"x.txt", SMALL) + END, "states a size of '-1'"),
        (tar_header(b"././@LongLink", b"%011o\0" % (1 << 30), b"L") + END, "takes 1073741824 bytes"),
        (tar_header(b"a.txt", SMALL, b"S") + END, "sparse"),
    ],
)
def test_a_tar_that_states_impossible_lengths_is_refused_at_once(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.tar.*{said}"):
        opened(path)


def test_sizes_of_links_and_folders_count_for_nothing_and_a_size_in_pax_fields_counts(tmp_path: Path) -> None:
    body = b"hello".ljust(512, b"\0")
    content = tar_header(b"folder/", b"00000001000\0", b"5") + tar_header(b"a.link", b"00000001000\0", b"1")
    content += pax(b"10 size=5\n") + tar_header(b"b.txt", b"00000000000\0") + body + END
    (tmp_path / "a.tar").write_bytes(content)
    with tarfile.open(tmp_path / "a.tar") as file:
        assert [(entry.name, entry.size) for entry in file if entry.isreg()] == [("b.txt", 5)]
    assert [record["caption"] for record in map(dict, (opened(tmp_path / "a.tar").raw(0),))] == ["hello"]


def test_names_in_a_tar_that_are_no_utf8_stay_apart_and_are_valid_text(tmp_path: Path) -> None:
    body = b"x".ljust(512, b"\0")
    names = (b"\xff.txt", b"\xfe.txt", b"a.\xff")
    plain = b"".join(tar_header(name, SMALL) + body for name in names)
    long = b"15 path=\xff\xff.txt\n"
    assert len(long) == 15
    gnu = tar_header(b"././@LongLink", b"%011o\0" % 6, b"L") + b"\xfd.txt\0".ljust(512, b"\0")
    (tmp_path / "a.tar").write_bytes(
        plain + pax(long) + tar_header(b"x", SMALL) + body + gnu + tar_header(b"y", SMALL) + body + END
    )
    source = opened(tmp_path / "a.tar")
    keys = [source.raw(row)["__key__"] for row in range(len(source))]
    assert keys == ["\\xff", "\\xfe", "a", "\\xff\\xff", "\\xfd"]


@pytest.mark.parametrize("change", ["cut", "replaced"])
def test_a_tar_that_changes_while_it_is_read_is_refused(change: str, tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", {f"{row}.txt": b"x" * 2000 for row in range(4)})
    source = opened(path)
    assert source.raw(3)["caption"] == "x" * 2000
    if change == "cut":
        path.write_bytes(path.read_bytes()[:3000])
    else:
        tar(tmp_path / "b.tar", {f"{row}.txt": b"y" * 2000 for row in range(4)}).replace(path)
    with pytest.raises(DataError, match=r"a\.tar: the file was replaced or changed while it was being read"):
        source.raw(3)


def test_names_of_files_in_a_folder_that_are_no_utf8_are_read_and_named_in_valid_text(tmp_path: Path) -> None:
    name = tmp_path / b"\xff.jsonl".decode("utf-8", "surrogateescape")
    name.write_text('{"problem": "q", "answer": "x"}\nnot json\n')
    source = opened(tmp_path)
    assert (source[0] or {})["problem"] == "q"
    with pytest.raises(DataError) as caught:
        source[1]
    str(caught.value).encode()
