"""Reading a page as a browser would, and stricter."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input", "source"}


@dataclass
class Element:
    """An element of a page, with what is in it."""

    tag: str
    attributes: dict[str, str | None]
    children: list["Element"] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    """Its own text and that of the elements in it, in order."""

    @property
    def text(self) -> str:
        """The text a reader sees, with single spaces."""
        return " ".join("".join(self.words).split())

    def all(self, tag: str, kind: str | None = None) -> list["Element"]:
        """The elements in it of a tag, and of a class where one is given."""
        found = []
        for child in self.children:
            if child.tag == tag and (kind is None or kind in (child.attributes.get("class") or "").split()):
                found.append(child)
            found += child.all(tag, kind)
        return found


class Page(HTMLParser):
    """A page as a tree; a tag that is not closed in its place is an error."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]

    @classmethod
    def of(cls, text: str) -> "Page":
        page = cls()
        page.feed(text)
        page.close()
        assert [element.tag for element in page._open] == [""], "elements are left open"
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of {tag} is given twice"
        element = Element(tag, dict(attrs))
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.words.append(data)

    def all(self, tag: str, kind: str | None = None) -> list[Element]:
        """The elements of a tag, and of a class where one is given."""
        return self.root.all(tag, kind)

    def everything(self) -> list[Element]:
        """Every element."""
        found, left = [], [self.root]
        while left:
            element = left.pop()
            found.append(element)
            left += element.children
        return found

    def table(self, name: str) -> list[list[str]]:
        """The cells of the table in the region of this name, its header first."""
        (region,) = [e for e in self.all("div", "scroll") if e.attributes["aria-label"] == name]
        return [[cell.text for cell in row.children] for row in region.all("tr")]
