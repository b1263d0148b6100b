"""PTX text to a syntax tree (PTX ISA 8.x, the subset LLVM prints plus common hand-written forms)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.ptx.lexer import Token, tokenize
from mlirstitch.runtime.emulator.ptx.literals import literal, literal_bits, natural_type
from mlirstitch.runtime.emulator.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Arguments,
    Function,
    Label,
    Module,
    Negated,
    Operand,
    Parameter,
    Register,
    Sink,
    Special,
    Statement,
    Symbol,
    Variable,
    Vector,
)

_SPECIAL = frozenset({
    "%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%clock",
    "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi", "%lanemask_eq", "%lanemask_le",
    "%lanemask_lt", "%lanemask_ge", "%lanemask_gt", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid",
    "%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster", "%dynamic_smem_size", "%total_smem_size",
})  # fmt: skip
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_SPACES = {".global", ".const", ".shared", ".local"}
_FUNCTION_DIRECTIVES = {
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".noreturn",
    ".reqnctapercluster", ".maxclusterrank", ".explicitcluster", ".blocksareclusters",
}  # fmt: skip


def parse(text: str) -> Module:
    """Parse a PTX module. Raises :class:`LaunchError` with the line of anything malformed."""
    return _Parser(tokenize(text)).module()


@dataclass
class _Scope:
    """Names declared between one pair of braces; ranges are ``%r<5>`` declarations: prefix to (count, type)."""

    names: dict[str, Register | Symbol] = field(default_factory=dict)
    ranges: dict[str, tuple[int, str]] = field(default_factory=dict)


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._module = Module()
        self._scopes: list[_Scope] = []
        self._scoped_names = 0
        self._location = ""

    # ---- tokens
    def _peek(self) -> Token:
        return self._tokens[self._position]

    def _next(self) -> Token:
        token = self._tokens[self._position]
        if token.kind != "end":
            self._position += 1
        return token

    def _fail(self, message: str, line: int | None = None) -> LaunchError:
        return LaunchError(f"malformed PTX, line {self._peek().line if line is None else line}: {message}")

    def _accept(self, text: str) -> bool:
        token = self._peek()
        if token.text == text and token.kind != "string":
            self._next()
            return True
        return False

    def _expect(self, text: str) -> Token:
        token = self._next()
        if token.text != text:
            raise self._fail(f"expected {text!r}, found {token.text or 'end of text'!r}", token.line)
        return token

    def _name(self) -> Token:
        token = self._next()
        if token.kind != "name":
            raise self._fail(f"expected a name, found {token.text or 'end of text'!r}", token.line)
        return token

    def _integer(self) -> int:
        negative = self._accept("-")
        token = self._next()
        if token.kind != "number":
            raise self._fail(f"expected a number, found {token.text or 'end of text'!r}", token.line)
        number = literal(token, negative)
        if number.kind != "int":
            raise self._fail(f"expected an integer, found {token.text!r}", token.line)
        return number.value

    # ---- module
    def module(self) -> Module:
        module = self._module
        self._find_files()
        while self._peek().kind != "end":
            token = self._next()
            text = token.text
            if token.kind == "implicit" or text in _LINKAGE:
                if text == ".extern" and self._peek().text in _SPACES:
                    self._module_variable(self._next().text, external=True)
            elif text == ".version":
                module.version = self._next().text
            elif text == ".target":
                module.target = self._name().text
                while self._accept(","):
                    self._name()
            elif text == ".address_size":
                if self._integer() != 64:
                    raise self._fail("only 64-bit addresses are supported", token.line)
            elif text == ".file":
                self._file()
            elif text == ".section":
                self._section()
            elif text == ".pragma":
                self._until_semicolon()
            elif text in (".entry", ".func"):
                self._function(entry=text == ".entry", line=token.line)
            elif text in _SPACES:
                self._module_variable(text, external=False)
            elif text == ".loc":
                self._skip_line(token.line)
            else:
                raise self._fail(f"unknown directive {text!r}", token.line)
        if not module.version:
            raise self._fail("no .version directive", 1)
        return module

    def _file(self) -> None:
        """``.file 1 "name", 0, 0`` or ``.file 1 "folder" "name"``."""
        number = self._integer()
        parts = [self._next().text.strip('"')]
        if self._peek().kind == "string":
            parts.append(self._next().text.strip('"'))
        self._module.files[number] = "/".join(parts)
        while self._accept(","):
            self._integer()

    def _find_files(self) -> None:
        """Read the ``.file`` directives first: LLVM prints them behind the code that refers to them."""
        start = self._position
        for position, token in enumerate(self._tokens):
            if token.text == ".file" and token.kind == "name":
                self._position = position + 1
                self._file()
        self._position = start

    def _section(self) -> None:
        self._name()
        self._expect("{")
        while not self._accept("}"):
            if self._next().kind == "end":
                raise self._fail(".section is not closed")

    def _skip_line(self, line: int) -> None:
        while self._peek().line == line and self._peek().kind != "end":
            self._next()

    def _until_semicolon(self) -> None:
        while not self._accept(";"):
            if self._next().kind == "end":
                raise self._fail("expected ';', found end of text")

    def _module_variable(self, directive: str, external: bool) -> None:
        for variable in self._variables(directive[1:], external):
            self._module.variables[variable.name] = variable

    def _variables(self, space: str, external: bool) -> list[Variable]:
        """Parse ``.align 4 .b8 a[6] = {..}, b;`` after the space."""
        align = 0
        element = ""
        while self._peek().text.startswith("."):
            attribute = self._next()
            if attribute.text == ".align":
                align = self._integer()
            elif attribute.text[1:] in TYPE_BYTES:
                element = attribute.text[1:]
            elif attribute.text == ".attribute":
                self._expect("(")
                while not self._accept(")"):
                    self._next()
            else:
                raise self._fail(f"unknown attribute {attribute.text!r} of a variable", attribute.line)
        if not element:
            raise self._fail("a variable without a type")
        width = TYPE_BYTES[element]
        found: list[Variable] = []
        while True:
            name = self._name()
            count = 1
            unsized = False
            while self._accept("["):
                if self._accept("]"):
                    unsized = True
                else:
                    count *= self._integer()
                    self._expect("]")
            initial = self._initializer(element) if self._accept("=") else None
            if unsized:
                count = len(initial) // width if initial is not None else 0
            if initial is not None:
                if len(initial) > count * width:
                    raise self._fail(f"too many initial values for {name.text!r}", name.line)
                initial = initial.ljust(count * width, b"\0")
            found.append(Variable(name.text, space, align or width, count * width, initial, external or unsized))
            if self._accept(";"):
                return found
            self._expect(",")

    def _initializer(self, element: str) -> bytes:
        if self._accept("{"):
            parts: list[bytes] = []
            while not self._accept("}"):
                parts.append(self._initializer(element))
                if not self._accept(","):
                    self._expect("}")
                    break
            return b"".join(parts)
        negative = self._accept("-")
        token = self._next()
        if token.kind != "number":
            raise self._fail(f"initial value {token.text!r} is not a number", token.line)
        bits = literal_bits(literal(token, negative), element)
        return bits.to_bytes(TYPE_BYTES[element], "little")

    # ---- functions
    def _function(self, entry: bool, line: int) -> None:
        results: tuple[Parameter, ...] = ()
        if not entry and self._peek().text == "(":
            results = self._parameters()
        name = self._name().text
        parameters = self._parameters() if self._peek().text == "(" else ()
        function = Function(name, entry, line, parameters, results)
        while self._peek().text in _FUNCTION_DIRECTIVES:
            directive = self._next().text
            values: list[int] = []
            while self._peek().kind == "number":
                values.append(self._integer())
                if not self._accept(","):
                    break
            function.directives[directive[1:]] = tuple(values)
        if self._accept(";"):
            self._module.functions.setdefault(name, function)
            return
        self._expect("{")
        self._body(function)
        self._module.functions[name] = function

    def _parameters(self) -> tuple[Parameter, ...]:
        self._expect("(")
        found: list[Parameter] = []
        offset = 0
        while not self._accept(")"):
            self._expect(".param")
            align, element, pointer = 0, "", False
            while self._peek().text.startswith("."):
                attribute = self._next()
                if attribute.text == ".align":
                    value = self._integer()
                    align = align if pointer else value
                elif attribute.text == ".ptr":
                    pointer = True
                elif attribute.text in _SPACES:
                    continue
                elif attribute.text[1:] in TYPE_BYTES:
                    element = attribute.text[1:]
                else:
                    raise self._fail(f"unknown attribute {attribute.text!r} of a parameter", attribute.line)
            name = self._name()
            if not element:
                raise self._fail(f"parameter {name.text!r} has no type", name.line)
            size = TYPE_BYTES[element]
            kind = "pointer" if pointer else "float" if element in ("f16", "bf16", "f32", "f64") else "integer"
            if element[0] == "b" and not pointer:
                kind = "bits"
            if self._accept("["):
                size *= self._integer()
                kind = "bytes"
                self._expect("]")
            align = align or TYPE_BYTES[element]
            offset = -(-offset // align) * align
            found.append(Parameter(name.text, kind, element, size, offset))
            offset += size
            if not self._accept(","):
                self._expect(")")
                break
        return tuple(found)

    def _body(self, function: Function) -> None:
        body: list[Statement | Label] = []
        self._scopes = [_Scope()]
        self._location = ""
        self._scoped_names = 0
        while self._scopes:
            token = self._peek()
            text = token.text
            if token.kind == "end":
                raise self._fail(f"function {function.name!r} is not closed")
            if text == "{":
                self._next()
                self._scopes.append(_Scope())
            elif text == "}":
                self._next()
                self._scopes.pop()
            elif token.kind == "implicit":
                self._next()
                register = self._resolve(token)
                if isinstance(register, Register):
                    body.append(Statement("implicit", (register,), None, token.line, self._location))
            elif text.startswith("."):
                self._next()
                self._body_directive(function, token)
            elif token.kind == "name" and self._tokens[self._position + 1].text == ":":
                self._next()
                self._next()
                if self._accept(".branchtargets"):
                    function.branch_targets[text] = self._names()
                elif self._peek().text in (".calltargets", ".callprototype"):
                    raise self._fail("indirect calls are not supported")
                else:
                    body.append(Label(text, token.line))
            else:
                body.append(self._statement())
        function.body = body

    def _names(self) -> tuple[str, ...]:
        names = [self._name().text]
        while self._accept(","):
            names.append(self._name().text)
        self._expect(";")
        return tuple(names)

    def _body_directive(self, function: Function, token: Token) -> None:
        text = token.text
        if text == ".reg":
            self._registers()
        elif text == ".loc":
            number, line = self._integer(), self._integer()
            self._location = f"{self._module.files.get(number, f'file {number}')}:{line}"
            self._skip_line(token.line)
        elif text == ".param":
            # Space for the arguments of a call. The name is renamed, because every call sequence uses the same ones.
            self._position -= 1
            for parameter in self._call_parameters():
                self._scoped_names += 1
                self._scopes[-1].names[parameter] = Symbol(f"{parameter}${self._scoped_names}")
        elif text in (".shared", ".local", ".global", ".const"):
            for variable in self._variables(text[1:], external=False):
                unique = f"{function.name}.{variable.name}"
                function.variables[unique] = replace(variable, name=unique)
                self._scopes[-1].names[variable.name] = Symbol(unique)
        elif text == ".pragma":
            self._until_semicolon()
        else:
            raise self._fail(f"unknown directive {text!r}", token.line)

    def _call_parameters(self) -> list[str]:
        self._expect(".param")
        while self._peek().text.startswith("."):
            if self._next().text == ".align":
                self._integer()
        names: list[str] = []
        while True:
            names.append(self._name().text)
            if self._accept("["):
                self._integer()
                self._expect("]")
            if self._accept(";"):
                return names
            self._expect(",")

    def _registers(self) -> None:
        declared = self._name().text[1:]
        if declared not in TYPE_BYTES:
            raise self._fail(f"registers of unknown type {declared!r}")
        kind = natural_type(declared)
        scope = self._scopes[-1]
        while True:
            name = self._name().text
            if self._accept("<"):
                scope.ranges[name] = (self._integer(), kind)
                self._expect(">")
            else:
                unique = name
                if len(self._scopes) > 1:
                    self._scoped_names += 1
                    unique = f"{name}${self._scoped_names}"
                scope.names[name] = Register(unique, kind)
            if self._accept(";"):
                return
            self._expect(",")

    # ---- instructions
    def _statement(self) -> Statement:
        start = self._peek().line
        guard = None
        if self._accept("@"):
            negated = self._accept("!")
            register = self._resolve(self._name())
            if not isinstance(register, Register) or register.type != "pred":
                raise self._fail("a guard must be a predicate register", start)
            guard = (register, negated)
        mnemonic = self._name()
        operands: list[Operand] = []
        while not self._accept(";"):
            operands.append(self._operand())
            if not self._accept(","):
                self._expect(";")
                break
        return Statement(mnemonic.text, tuple(operands), guard, mnemonic.line, self._location)

    def _operand(self) -> Operand:
        token = self._next()
        if token.text == "{":
            return Vector(self._list("}"))
        if token.text == "(":
            return Arguments(self._list(")"))
        if token.text == "[":
            return self._address()
        if token.text == "!":
            register = self._resolve(self._name())
            if not isinstance(register, Register) or register.type != "pred":
                raise self._fail("only a predicate can be negated", token.line)
            return Negated(register)
        if token.text == "-" or token.kind == "number":
            negative = token.text == "-"
            number = self._next() if negative else token
            if number.kind != "number":
                raise self._fail(f"expected a number, found {number.text!r}", number.line)
            return literal(number, negative)
        if token.kind != "name":
            raise self._fail(f"unexpected {token.text or 'end of text'!r}", token.line)
        found = Sink() if token.text == "_" else self._resolve(token)
        if self._accept("|"):
            other = self._name()
            return Vector((found, Sink() if other.text == "_" else self._resolve(other)), bar=True)
        if isinstance(found, Symbol) and self._peek().text in ("+", "-"):
            return Symbol(found.name, found.offset + self._offset())
        return found

    def _list(self, close: str) -> tuple[Operand, ...]:
        elements: list[Operand] = []
        while not self._accept(close):
            elements.append(self._operand())
            if not self._accept(","):
                self._expect(close)
                break
        return tuple(elements)

    def _offset(self) -> int:
        sign = 1 if self._accept("+") else -1
        if sign < 0:
            self._expect("-")
        return sign * self._integer()

    def _address(self) -> Address:
        base: Register | Symbol | None = None
        offset = 0
        if self._peek().kind == "name":
            found = self._resolve(self._next())
            if not isinstance(found, Register | Symbol):
                raise self._fail("an address must start with a register or a variable")
            base = found
            if self._peek().text in ("+", "-"):
                offset = self._offset()
        else:
            offset = self._integer()
        self._expect("]")
        return Address(base, offset)

    def _resolve(self, token: Token) -> Register | Special | Symbol:
        name = token.text
        for scope in reversed(self._scopes):
            if name in scope.names:
                return scope.names[name]
            prefix = name.rstrip("0123456789")
            if prefix in scope.ranges and len(prefix) < len(name):
                count, kind = scope.ranges[prefix]
                if int(name[len(prefix) :]) < count:
                    return Register(name, kind)
        if name.startswith("%"):
            if name.split(".")[0] in _SPECIAL:
                return Special(name)
            raise self._fail(f"unknown register {name!r}", token.line)
        return Special(name) if name == "WARP_SZ" else Symbol(name)
