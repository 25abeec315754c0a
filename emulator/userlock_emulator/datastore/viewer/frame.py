"""The frame of every page: heading, navigation, parts that several pages have."""

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.viewer.markup import Child, Markup, tag
from userlock_emulator.datastore.viewer.paths import PREFIX
from userlock_emulator.datastore.viewer.places import Fields, address

_NAVIGATION = {
    "kinds": "Kinds",
    "query": "Query",
    "transactions": "Transactions",
    "faults": "Faults",
}
#: The page that one without an entry of its own belongs to.
_BELOW = {"kind": "kinds", "entity": "kinds", "edit": "kinds", "new": "kinds", "delete": "kinds"}


def page(name: str, title: str, main: Child, *, json: str, edit: bool, refresh: int = 0) -> bytes:
    """Return a whole page.

    Args:
        name: the last part of its address.
        title: its heading.
        main: what is below.
        json: the address of the same as JSON; "" for none.
        edit: whether the data can be changed here.
        refresh: seconds after which it comes again; 0: it stays.
    """
    current = _BELOW.get(name, name)
    links = [
        tag(
            "li",
            tag(
                "a",
                text,
                href=f"{PREFIX}/{each}",
                aria_current="page" if each == current else None,
            ),
        )
        for each, text in _NAVIGATION.items()
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="refresh", content=refresh) if refresh else None,
        tag("title", f"{title} · Datastore emulator"),
        tag("link", rel="stylesheet", href=f"{PREFIX}/style.css"),
    )
    mode = "can edit" if edit else "read-only"
    body = tag(
        "body",
        tag(
            "header",
            tag("p", "Datastore emulator ", tag("span", mode), class_="brand"),
            tag("nav", tag("ul", links), aria_label="Pages"),
        ),
        tag("main", tag("h1", title, id="title"), main),
        tag("footer", tag("a", "This page as JSON", href=json)) if json else None,
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n".encode(
        "utf-8", "backslashreplace"
    )


def table(
    label: str, heads: list[Child], rows: list[Markup], *, ends_in_number: bool = False
) -> Markup:
    """Return a table that scrolls by itself where it is too wide, also by keyboard."""
    cells = [tag("th", head, scope="col") for head in heads]
    if ends_in_number:
        cells[-1] = tag("th", heads[-1], scope="col", class_="number")
    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", cells)),
            tag("tbody", rows),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=label,
    )


def facts(*pairs: tuple[Child, Child]) -> Markup:
    """Return a list of names and values."""
    return tag(
        "dl",
        [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs],
        class_="facts",
    )


def post(name: str, button: Child, /, *, danger: bool = False, **fields: str) -> Markup:
    """Return a form that is one button."""
    return tag(
        "form",
        [tag("input", type="hidden", name=key, value=value) for key, value in fields.items()],
        tag("button", button, class_="danger" if danger else None),
        method="post",
        action=f"{PREFIX}/{name}",
    )


def field(
    label: str, name: str, fields: Fields, *, default: str = "", hint: str | None = None
) -> Markup:
    """Return a labelled line of text in a form."""
    return tag(
        "p",
        tag("label", label, for_=f"f-{name}"),
        tag(
            "input",
            id=f"f-{name}",
            name=name,
            value=fields.get(name, default),
            placeholder=hint,
            autocomplete="off",
            spellcheck="false",
        ),
    )


def choice(label: str, name: str, options: list[str], chosen: str) -> Markup:
    """Return a list to choose from. Its label is for screen readers."""
    return tag(
        "p",
        tag("label", label, for_=f"f-{name}", class_="hidden"),
        tag(
            "select",
            [tag("option", each, value=each, selected=each == chosen) for each in options],
            id=f"f-{name}",
            name=name,
        ),
    )


def place_text(partition: Partition) -> str:
    """Return a partition in words."""
    words = [f"project {partition.project}"]
    if partition.database:
        words.append(f"database {partition.database}")
    words.append(f"namespace {partition.namespace}" if partition.namespace else "default namespace")
    return ", ".join(words)


def further(name: str, text: str, fields: Fields, **more: str | int | None) -> Markup:
    """Return the link to another page of a list."""
    link = tag("a", text, href=address(name, fields, **more), rel="next")
    return tag("p", link, class_="further")


def note(*children: Child, error: bool = False) -> Markup:
    """Return a paragraph that stands out. An error is read out at once."""
    if error:
        return tag("p", *children, class_="error", role="alert")
    return tag("p", *children, class_="note")


def seconds(number: float) -> str:
    """Return a duration in words."""
    if number < 60:
        return f"{number:.1f} s"
    return f"{int(number) // 60} min {int(number) % 60} s"
