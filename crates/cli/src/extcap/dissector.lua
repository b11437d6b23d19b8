-- Shows the data that trawl records about packets as fields in Wireshark and tshark.
--
-- `trawl extcap fields --lua` generates this file: the tables below are those by which trawl writes its comments.
-- It runs in the Lua of Wireshark 4.0 (5.2) and of later versions (5.4).

-- A second copy, such as a user's own, does nothing.
local is_first, trawl = pcall(Proto, "trawl", "trawl")
if not is_first then
    return
end

-- Name, type, title and description of each field.
local FIELDS = {
--FIELDS
}

-- The words of each kind of comment: the form of the value, and its fields.
local KEYS = {
--KEYS
}

-- The kinds of comments by the key with which they begin.
local KINDS = {
--KINDS
}

-- Comments that are sentences: their beginning, the field of the rest, the separator of a list, and fields of numbers.
local PHRASES = {
--PHRASES
}

-- Names of verdicts.
local VERDICTS = {
--VERDICTS
}

-- Advice on drops by reason, function or both, as in `trawl why`.
local ADVICE = {
--ADVICE
}

local fields, types = {}, {}
for _, row in ipairs(FIELDS) do
    local name, kind, title, about = row[1], row[2], row[3], row[4]
    types[name] = kind
    if kind == "text" then
        fields[name] = ProtoField.string(name, title, base.UNICODE, about)
    elseif kind == "number16" then
        fields[name] = ProtoField.uint16(name, title, base.DEC, nil, nil, about)
    elseif kind == "number32" then
        fields[name] = ProtoField.uint32(name, title, base.DEC, nil, nil, about)
    elseif kind == "number64" then
        fields[name] = ProtoField.uint64(name, title, base.DEC, nil, nil, about)
    else
        fields[name] = ProtoField.bool(name, title, base.NONE, nil, nil, about)
    end
end
trawl.fields = fields

local experts = {
--EXPERTS
}
trawl.experts = experts

-- Returns the reader of a field of Wireshark's own, which an older version may lack.
local function reader(name)
    local exists, field = pcall(Field.new, name)
    return function()
        if exists then
            return { field() }
        end
        return {}
    end
end

local comments = reader("frame.comment")
local interface_name = reader("frame.interface_name")
local interface_description = reader("frame.interface_description")
local packet_id = reader("frame.packet_id")
local custom_block = reader("frame.cb_pen")
local verdicts = { xdp = reader("frame.verdict.ebpf_xdp"), tc = reader("frame.verdict.ebpf_tc") }
local destinations = { reader("ip.dst"), reader("ipv6.dst") }

-- Returns the first value of a field of Wireshark's own, or nil.
local function first(read)
    local found = read()[1]
    return found and found.value
end

-- Returns the text after a beginning, or nil.
local function after(text, begin)
    return text:sub(1, #begin) == begin and text:sub(#begin + 1) or nil
end

-- Returns the text before and after a separator, or nil.
local function split(text, separator)
    local from, to = text:find(separator, 1, true)
    if from then
        return text:sub(1, from - 1), text:sub(to + 1)
    end
end

-- Returns the value of a field's type, or nil if the text is none.
local function typed(name, text)
    local kind = types[name]
    if kind == "text" then
        return text
    elseif kind == "flag" then
        return true
    elseif not text:match("^%d+$") then
        return nil
    elseif kind == "number64" then
        local digits, number = text:gsub("^0+(%d)", "%1"), UInt64(0)
        for digit in digits:gmatch("%d") do
            number = number * 10 + tonumber(digit)
        end
        return tostring(number) == digits and number or nil
    end
    local number = tonumber(text)
    return number < (kind == "number16" and 65536 or 4294967296) and number or nil
end

-- The forms of values: each returns the values of the fields of its key, or nil if the text has another form. A value is
-- a text, a list of texts, or false.
local forms = {}

function forms.whole(text)
    return { text }
end

function forms.name_and_number(text)
    local name, number = text:match("^(.*)%[(%d+)%]$")
    return name and { name, number }
end

function forms.name_and_port(text)
    local name, number = text:match("^(.*):(%d+)$")
    return name and { name, number }
end

function forms.location(text)
    return { text, text:match("^[^+]*") }
end

function forms.rule(text)
    local family, table_name, chain = text:match("^([^,]*),([^,]*),(.*)$")
    if not family then
        return nil
    end
    local name, handle = chain:match("^(.*),(%d+)$")
    chain = name or chain
    local of = " of " .. family .. " " .. table_name .. " " .. chain
    return { (handle and "rule " .. handle or "policy") .. of, family, table_name, chain, handle or false }
end

function forms.list(text)
    local parts = {}
    for part in text:gmatch("[^,]+") do
        parts[#parts + 1] = part
    end
    return { parts }
end

function forms.ends(text)
    local has = {}
    for part in text:gmatch("[^,]+") do
        has[part] = part
    end
    return { has.src or false, has.dst or false }
end

function forms.cgroup(text)
    local number = text:match("^cgroup:(%d+)$")
    return number and { number }
end

-- Adds the value of a word.
local function add_word(add, kind, key, text)
    for _, row in ipairs(KEYS[kind][key] or {}) do
        for index, value in ipairs(forms[row[1]](text) or {}) do
            local name = row[index + 1]
            for _, one in ipairs(type(value) == "table" and value or { value or nil }) do
                if name then
                    add(name, one)
                end
            end
        end
    end
end

-- Adds the words about a socket: the text after the first key of a comment, or a word of another comment, in which `_`
-- separates the words. The last `owner` is the right one, because users choose the names of their cgroups.
local function add_socket(add, key, text, separator)
    local before, owner = "", text
    if key == "socket" then
        before, owner = text:match("^(.*)" .. separator .. "owner=(.*)$")
        before, owner = before or text, owner or ""
    end
    local cookie, cgroup = split(before, separator .. "cgroup=")
    add_word(add, "socket", "socket", cookie or before)
    if cgroup then
        add_word(add, "socket", "cgroup", cgroup)
    end
    owner = owner:match("^%l+")
    if owner then
        add_word(add, "socket", "owner", owner)
    end
end

-- Adds the words of a comment that blanks separate.
local function add_words(add, kinds, text)
    for word in text:gmatch("[^ ]+") do
        local key, value = split(word, "=")
        if key == "socket" or key == "owner" then
            add_socket(add, key, value, "_")
        elseif key then
            for _, kind in ipairs(kinds) do
                add_word(add, kind, key, value)
            end
        end
    end
end

-- Adds a process, and the words after it. Its name may contain anything, and the words have no bracket.
local function add_process(add, text)
    while text:sub(-1) ~= "]" do
        local before, key, value = text:match("^(.*) ([^ =]*)=([^ ]*)$")
        if not before then
            return
        end
        add_word(add, "process", key, value)
        text = before
    end
    add_word(add, "process", "process", text)
end

local function add_comment(add, text)
    for _, phrase in ipairs(PHRASES) do
        local rest = after(text, phrase[1])
        if rest then
            if phrase[3] then
                for _, part in ipairs(forms.list((rest:gsub(", ", ",")))[1]) do
                    add(phrase[2], part)
                end
            else
                add(phrase[2], rest)
            end
            for _, number in ipairs(phrase[4]) do
                local found = number[1] == "" and rest:match("^%d+") or rest:match(number[1] .. "(%d+)")
                if found then
                    add(number[2], found)
                end
            end
            return
        end
    end
    local key, rest = split(text, "=")
    local kind = KINDS[key]
    if kind == "socket" then
        add_socket(add, key, rest, " ")
    elseif kind == "process" then
        add_process(add, rest)
    elseif kind == "step" and text:find(" drop=", 1, true) then
        add_words(add, { "step", "drop" }, text)
    elseif kind then
        add_words(add, { kind }, text)
    end
end

-- Adds the hook, the program and the pod, which are in the description of the interface.
local function add_description(add, text)
    local hook, rest = split(text, ", time stamps from the ")
    if not hook then
        return
    end
    add("trawl.hook", split(hook, " (") or hook)
    local before, pod = split(rest, ", pod=")
    if pod then
        local name, labels = split(pod, " labels=")
        add_word(add, "pod", "pod", name or pod)
        if labels then
            add_word(add, "pod", "labels", labels)
        end
    end
    local _, program = split(before or rest, ", xdp_program=")
    if program then
        add_words(add, { "program" }, "xdp_program=" .. program)
    end
end

-- Returns the device of an interface. The names of records of drops, and of both ends of a program, have a suffix.
local function device(name)
    for _, suffix in ipairs({ " (drop)", " (xdp entry)", " (xdp exit)" }) do
        if name:sub(-#suffix) == suffix then
            return name:sub(1, -#suffix - 1)
        end
    end
    return name
end

-- Returns a packet id in short: the CPU that saw the packet first, and its number on that CPU.
local function short(id)
    local cpu = id:rshift(48):tonumber()
    local mark = cpu >= 32768 and "d" or ""
    return string.format("%s%.0f.%s", mark, cpu % 32768, tostring(id:lshift(16):rshift(16)))
end

-- Returns a name as one word of a shell's command line.
local function quoted(name)
    if name:match("^[%w%-_./:=,%%@+]+$") then
        return name
    end
    return "'" .. name:gsub("'", "'\\''") .. "'"
end

-- Returns the rank of an advice for a reason and a function: the most specific one counts.
local function rank(subject, reason, at)
    local of, functions = split(subject, "@")
    of = of or subject
    local is_at = functions ~= nil and ("," .. functions .. ","):find("," .. at .. ",", 1, true) ~= nil
    if of == "" then
        return is_at and (reason == "NOT_SPECIFIED" and 3 or 1) or nil
    end
    local is_prefix = of:sub(-1) == "*"
    local is_of = of == reason or is_prefix and reason:sub(1, #of - 1) == of:sub(1, -2)
    if not is_of then
        return nil
    elseif functions then
        return is_at and 4 or nil
    elseif reason == "NOT_SPECIFIED" then
        return 1
    end
    return is_prefix and 2 or 3
end

-- Returns the text with another text in place of each word.
local function with(text, word, other)
    return (text:gsub(word, (other:gsub("%%", "%%%%"))))
end

-- Returns the advice on a drop. Commands run in the namespace of the drop, if it has a name.
local function fix(of, interface)
    local best, advice = 0, nil
    for _, row in ipairs(ADVICE) do
        local found = rank(row[1], of["trawl.drop.reason"], of["trawl.drop.function"] or "")
        if found and found >= best then
            best, advice = found, row[2]
        end
    end
    local namespace = of["trawl.drop.namespace"]
    if of["trawl.drop.rule"] then
        advice = of["trawl.drop.rule"] .. ": PREFIXnft list chain"
        for _, part in ipairs({ "family", "table", "chain" }) do
            advice = advice .. " " .. quoted(of["trawl.drop.rule." .. part])
        end
    end
    if not advice then
        return nil
    end
    local is_named = namespace and not namespace:match("^%d+$")
    local name = quoted(advice:find(".INTERFACE.", 1, true) and interface:gsub("%.", "/") or interface)
    local destination = first(destinations[1]) or first(destinations[2])
    advice = with(advice, "PREFIX", is_named and "ip netns exec " .. quoted(namespace) .. " " or "")
    advice = with(advice, "INTERFACE", name)
    return with(advice, "DESTINATION", destination and tostring(destination) or "ADDRESS")
end

-- Returns a sentence about a drop.
local function end_of(of)
    local text = of["trawl.drop.reason"]
    if of["trawl.drop.location"] then
        text = text .. " at " .. of["trawl.drop.location"]
    end
    if of["trawl.drop.namespace"] then
        text = text .. " in " .. of["trawl.drop.namespace"]
    end
    if of["trawl.drop.rule"] then
        text = text .. ", " .. of["trawl.drop.rule"]
    end
    return text
end

-- The verdicts that keep a packet from the stack and lose it.
local LOSSES = { xdp = { ABORTED = true, DROP = true }, tc = { SHOT = true } }

function trawl.dissector(_, _, root)
    -- Wireshark shows descriptions of processes as packets, 4.6 at the interface of the previous packet.
    if first(custom_block) then
        return
    end
    local tree
    -- The first value of each field, its item in the tree, and all values.
    local of, items, all = {}, {}, {}

    local function add(name, value)
        if type(value) == "string" then
            value = typed(name, value)
        end
        local key = name .. "=" .. tostring(value)
        if value == nil or all[key] then
            return
        end
        all[key] = true
        if of[name] == nil then
            of[name] = value
        end
        tree = tree or root:add(trawl):set_generated()
        -- Further values, such as the rest of a stack, are below the first one.
        local item = (items[name] or tree):add(fields[name], value):set_generated()
        items[name] = items[name] or item
    end

    local name = first(interface_name)
    local description = first(interface_description)
    local found = comments()
    local lost
    -- Files of other programs have packet ids and descriptions, too.
    if description and description:find(", time stamps from the ", 1, true) then
        add_description(add, description)
    end
    for _, comment in ipairs(found) do
        add_comment(add, comment.value)
    end
    for kind, read in pairs(verdicts) do
        local number = first(read)
        if number then
            local text = VERDICTS[kind][tostring(number)] or tostring(number)
            add("trawl.verdict", text)
            add("trawl.verdict.kind", kind)
            lost = LOSSES[kind][text] and text or lost
        end
    end
    if not tree then
        return
    end
    -- Wireshark calls an interface without a name `unknown`.
    if name and (description or name ~= "unknown") then
        add("trawl.interface", device(name))
    end
    local id = first(packet_id)
    if id then
        add("trawl.packet", id)
        add("trawl.packet.short", short(id))
    end
    if of["trawl.drop.reason"] then
        -- The interface of a step has the step's name before it, and the namespace after it.
        local interface = name and device(name) or "IF"
        if of["trawl.step"] then
            interface = (after(interface, of["trawl.step"] .. " ") or "IF"):gsub(" %(.*$", "")
        end
        local advice = fix(of, interface)
        if advice then
            add("trawl.drop.fix", advice)
        end
        local text = end_of(of)
        tree:append_text(": " .. text)
        if of["trawl.drop.no_loss"] then
            tree:add_proto_expert_info(experts.freed, "Freed, no loss: " .. text)
        else
            tree:add_proto_expert_info(experts.dropped, "Dropped: " .. text .. (advice and "; " .. advice or ""))
        end
    elseif lost then
        tree:append_text(": " .. lost)
        tree:add_proto_expert_info(experts.dropped, "Dropped: verdict " .. lost .. " of " .. of["trawl.verdict.kind"])
    elseif of["trawl.step"] then
        tree:append_text(": step " .. of["trawl.step"])
    end
    if of["trawl.slow"] then
        tree:add_proto_expert_info(experts.slow, "Slow: " .. of["trawl.slow"])
    end
    if of["trawl.trigger"] then
        tree:add_proto_expert_info(experts.trigger, "Trigger " .. of["trawl.trigger"])
    end
end

register_postdissector(trawl)

-- Menus of the list of packets, which Wireshark has since 4.2.
if gui_enabled() and register_packet_menu then
    local function value(name, infos)
        for _, info in ipairs(infos) do
            if info.name == name then
                return info.value
            end
        end
    end

    register_packet_menu("trawl/Follow this packet", function(...)
        local id = value("trawl.packet", { ... })
        if id then
            set_filter("trawl.packet == " .. tostring(id))
            apply_filter()
        end
    end, "trawl.packet")

    register_packet_menu("trawl/Show the fix for this drop", function(...)
        local window = TextWindow.new("trawl: " .. tostring(value("trawl.drop.reason", { ... })))
        window:set(tostring(value("trawl.drop.fix", { ... })))
    end, "trawl.drop.fix")
end
