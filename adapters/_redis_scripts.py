"""What a Redis server does with the keys of a store, each time as a whole.

All keys of a tenant share the hash tag ``{digest}``, so that they lie in one slot of a cluster, and every script names all of its keys.

``prefix:{digest}:i:<response id>``  a *pointer*, ``<branch>:<position>``: where the response of that id is
``prefix:{digest}:b:<branch>``       a *branch*, a hash: records that follow each other and expire together

======== ===================================================================================================
field    of a branch
======== ===================================================================================================
``<n>``  the record at position n
``i<n>`` its id, as long as that is not hidden
``n``    the number of positions
``o``    the pointer to the record that the branch forks; none for a branch that begins with a root or a base
``a``    the names of all branches that it forks, directly and not, the nearest first, joined by commas
``f``    the highest position that is forked: neither it nor what is before it is removed
``p``    the server's time in milliseconds until which all pointers to the branch live at least
======== ===================================================================================================

A branch has one time to live, extended by each append to it and to its forks. Its pointers live longer: twice the time to live of
the append that made them. When a branch would outlive its pointers they are extended all at once, so that it costs one append
in a while, and not each.
"""

from typing import Final

from ws_responses.adapters._redis_client import Script

__all__ = ["APPEND", "DELETE", "REFRESH"]

_DROP: Final = """
local function drop(branch, position)
    if redis.call('EXISTS', branch) == 0 then return end
    redis.call('HDEL', branch, 'i' .. position)
    local n = tonumber(redis.call('HGET', branch, 'n'))
    local forked = tonumber(redis.call('HGET', branch, 'f') or -1)
    while n > 0 and n - 1 > forked and redis.call('HEXISTS', branch, 'i' .. (n - 1)) == 0 do
        n = n - 1
        redis.call('HDEL', branch, n)
    end
    if n == 0 then redis.call('DEL', branch) else redis.call('HSET', branch, 'n', n) end
end
local function split(pointer)
    local at = string.find(pointer, ':', 1, true)
    return string.sub(pointer, 1, at - 1), tonumber(string.sub(pointer, at + 1))
end
"""

APPEND: Final = Script(
    _DROP
    + """
-- KEYS: the pointer; a branch of a new name; if the id is there already: its branch;
--       if there is a parent: its pointer, its branch, the branches that that one forks.
-- ARGV: id, record, time to live (ms), name of the new branch, the pointer as it is ('' if there is none),
--       the parent's pointer ('' for none), the names of the branches that the new one would fork.
-- Returns 'changed' if a pointer is another one, 'gone' if the parent is not there, else 'ok' and the places in KEYS of the
-- branches whose pointers are to be extended.
local id, record, ttl, name, own, parent = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local at = 3
local replaced
if own ~= '' then replaced = at; at = at + 1 end

if (redis.call('GET', KEYS[1]) or '') ~= own then return {'changed'} end
local below, position
if parent ~= '' then
    if redis.call('GET', KEYS[at]) ~= parent then return {'changed'} end
    below = at + 1
    local _
    _, position = split(parent)
    if redis.call('HEXISTS', KEYS[below], position) == 0 then return {'gone'} end
    for origin = below + 1, #KEYS do
        if redis.call('EXISTS', KEYS[origin]) == 0 then return {'gone'} end
    end
end

if replaced then
    -- Changes nothing, but fails where there is no memory: before anything is changed, and not half-way.
    redis.call('SET', KEYS[1], own, 'KEEPTTL')
    local _, old = split(own)
    if own ~= parent then drop(KEYS[replaced], old) end
end

local branch, n = 2, 0
if below then
    n = tonumber(redis.call('HGET', KEYS[below], 'n'))
    if position == n - 1 then
        branch = below
        name = split(parent)
    else
        n = 0
        local forked = tonumber(redis.call('HGET', KEYS[below], 'f') or -1)
        redis.call('HSET', KEYS[branch], 'o', parent, 'a', ARGV[7])
        redis.call('HSET', KEYS[below], 'f', math.max(forked, position))
    end
end
if n == 0 then redis.call('HSET', KEYS[branch], 'p', now + 2 * ttl) end
redis.call('HSET', KEYS[branch], n, record, 'i' .. n, id, 'n', n + 1)
local life = math.max(2 * ttl, tonumber(redis.call('HGET', KEYS[branch], 'p')) - now)
redis.call('SET', KEYS[1], name .. ':' .. n, 'PX', life)

local answer = {'ok'}
local function extend(key)
    if redis.call('PTTL', KEYS[key]) < ttl then redis.call('PEXPIRE', KEYS[key], ttl) end
    if tonumber(redis.call('HGET', KEYS[key], 'p')) < now + ttl then table.insert(answer, key) end
end
extend(branch)
if below then
    for origin = (branch == below and below + 1 or below), #KEYS do extend(origin) end
end
return answer
"""
)
"""Adds a record, whole or not at all."""

DELETE: Final = Script(
    _DROP
    + """
-- KEYS: the pointer, its branch. ARGV: the pointer as it is. Returns 'changed' or 'ok'.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 'changed' end
local _, position = split(ARGV[1])
redis.call('DEL', KEYS[1])
drop(KEYS[2], position)
return 'ok'
"""
)
"""Hides an id, and removes its record if nothing hangs on it."""

REFRESH: Final = Script("""
-- KEYS: a branch, and some of its pointers. ARGV: time to live (ms); if all pointers are done: when the first of them ends (ms),
--       and how many positions there were. That is noted unless there are more meanwhile. Returns the server's time (ms).
local ttl = tonumber(ARGV[1])
for pointer = 2, #KEYS do
    local left = redis.call('PTTL', KEYS[pointer])
    if left >= 0 and left < ttl then redis.call('PEXPIRE', KEYS[pointer], ttl) end
end
if ARGV[2] and redis.call('HGET', KEYS[1], 'n') == ARGV[3] then redis.call('HSET', KEYS[1], 'p', ARGV[2]) end
local time = redis.call('TIME')
return time[1] * 1000 + math.floor(time[2] / 1000)
""")
"""Extends the lives of pointers."""
