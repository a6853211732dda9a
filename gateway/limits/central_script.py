"""What Redis does, in one step, when a process reports and draws: the rules of limits that several share.

A counter is a hash. `u` is what was used in the window that begins at `w` (days, months); `b:SECOND` what was used
in that second (minutes). `l:PROCESS` is that process's lease, as `amount idle taken untaken expiry`: what it may
still use or has reserved for requests under way; the part of it that no request needs; the sums of all that it
ever reported as used, and as not used after all, so that a report that comes twice counts once; its end, in ms.
Its sums stay for a minute where nothing is lent any more: without an answer the process may say the same again.

An ended lease goes on counting while its process may have used it: a minute longer for minutes, and to the
window's end for days and months unless the books say what was really used. Places come back at once. So, whatever
dies, at any moment

    used + leases <= limit

All counters belong to a generation, a hash of its own. A process that knew another generation than the one it
finds has learned that everything vanished: by FLUSHALL, a restart without persistence, an empty replica. Then
nothing is granted until every process that lived through it has told its requests under way again (`s:PROCESS`),
or the lease of those that do not answer has ended. A counter of days or months is known once it has `u`; before,
`x` is what processes have told again, and the books say the rest. For a minute after a loss that holds for
minutes, too: `k`.

The books may know of requests that their process has not reported yet. They are compared with a counter of days or
months only once every process has reported all that ended before they were read: each says the time of the answer
before its report. Otherwise such a request would count twice until the window ends.

Each process says first: who it is; how long leases last; the generation that it knows; how many processes it knew;
whether it has told all again; up to when its reports are complete, in ms of Redis's clock. It is told first: how
many processes there are; the generation; whether anything is granted; what time it is. For each counter it says:
limit; kind (s: places, m: minutes, c: calendar); four begins of windows; taken and untaken, as they are, then as
they were acknowledged; held; idle; need, least, ahead; books; whether this tells again what an unknown counter
lacks; ms since the books were read. It is told: whether the counter is known; granted (below 0: taken back);
available; idle elsewhere; whether its lease was lost; ms until the lease ends; ms since the window began; ms until
there may be room; ms since the oldest ended lease ended; whether it is to say again what the books have, as others
have not reported since. Of counters of another generation it is told nothing.
"""

REPLY_HEAD = 4
REPLY_FIELDS = 10

SCRIPT = """
local owner, lease_ms = ARGV[1], tonumber(ARGV[2])
local clock = redis.call('TIME')
local second = tonumber(clock[1])
local now = second * 1000 + math.floor(tonumber(clock[2]) / 1000)
local SPAN, FOREVER = 60, 9007199254740000

local function text(number) return string.format('%.0f', number) end

redis.call('ZADD', KEYS[1], now, owner)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 10000)
redis.call('EXPIRE', KEYS[1], 60)
local processes = redis.call('ZCARD', KEYS[1])

local generation, lost, opened, peers = unpack(redis.call('HMGET', KEYS[2], 'id', 'lost', 'open', 'peers'))
if not generation then
  generation = owner .. '-' .. clock[1] .. '-' .. clock[2]
  redis.call('HSET', KEYS[2], 'id', generation)
end
if ARGV[3] ~= generation then
  if ARGV[3] ~= '' then
    redis.call('HSETNX', KEYS[2], 'lost', text(now))
    redis.call('HSET', KEYS[2], 'peers', text(math.max(tonumber(peers or 0), tonumber(ARGV[4]))))
  end
  return {text(processes), generation, '0', text(now)}
end
redis.call('ZADD', KEYS[3], ARGV[6], owner)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - lease_ms)
redis.call('EXPIRE', KEYS[3], 60)
lost = lost and tonumber(lost)

local function is_whole()
  if not lost or opened then return true end
  if ARGV[5] == '1' then redis.call('HSET', KEYS[2], 's:' .. owner, '1') end
  local survivors = 0
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    if string.sub(field, 1, 2) == 's:' then survivors = survivors + 1 end
  end
  if survivors < tonumber(peers) and now < lost + lease_ms then return false end
  redis.call('HSET', KEYS[2], 'open', '1')
  return true
end

local is_open = is_whole()

local function read(key)
  local raw = redis.call('HGETALL', key)
  local have = {used = 0, buckets = {}, leases = {}, counted = false}
  for i = 1, #raw, 2 do
    local field, value = raw[i], raw[i + 1]
    local head = string.sub(field, 1, 2)
    if field == 'u' then have.used, have.counted = tonumber(value), true
    elseif field == 'x' then have.used = tonumber(value)
    elseif field == 'k' then have.counted = true
    elseif field == 'w' then have.window = tonumber(value)
    elseif head == 'b:' then have.buckets[tonumber(string.sub(field, 3))] = tonumber(value)
    else
      local amount, idle, taken, untaken, ends = string.match(value, '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
      have.leases[string.sub(field, 3)] = {
        amount = tonumber(amount), idle = tonumber(idle), taken = tonumber(taken),
        untaken = tonumber(untaken), ends = tonumber(ends)}
    end
  end
  return have
end

local function enter_window(key, have, begins)
  local from, till = begins[1], begins[4]
  for i = 1, 3 do
    if begins[i] <= second and second < begins[i + 1] then from, till = begins[i], begins[i + 1] end
  end
  if have.window and have.window ~= from then
    redis.call('DEL', key)
    if have.counted then redis.call('HSET', key, 'u', '0') end
    have.used, have.leases = 0, {}
  end
  redis.call('HSET', key, 'w', text(from))
  have.window = from
  return till
end

local function age_buckets(key, have)
  have.used = 0
  for at, amount in pairs(have.buckets) do
    if at < second - SPAN then
      redis.call('HDEL', key, 'b:' .. text(at))
      have.buckets[at] = nil
    else have.used = have.used + amount end
  end
end

-- What others have: sums over their leases, and how long ago the oldest of the ended ones ended.
local function others(key, have, grace)
  local leased, idle, ended = 0, 0, 0
  for name, lease in pairs(have.leases) do
    if name ~= owner then
      local kept = lease.amount > 0 and grace or SPAN * 1000
      if lease.ends + kept <= now then redis.call('HDEL', key, 'l:' .. name)
      elseif lease.amount > 0 then
        leased = leased + lease.amount
        if lease.ends > now then idle = idle + lease.idle else ended = math.max(ended, now - lease.ends) end
      end
    end
  end
  return leased, idle, ended
end

-- Whether every other process that lives has reported all that ended before this time.
local function have_told_since(at)
  local all = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do
    if all[i] ~= owner and tonumber(all[i + 1]) < at then return false end
  end
  return true
end

-- The ledger has what was used before; usage that processes reported again is added.
local function count(key, have, kind, books)
  if kind == 'c' then
    have.used = have.used + books
    redis.call('HDEL', key, 'x')
    redis.call('HSET', key, 'u', text(have.used))
  else
    have.used = have.used + books
    have.buckets[second] = (have.buckets[second] or 0) + books
    redis.call('HSET', key, 'k', '1', 'b:' .. text(second), text(have.buckets[second]))
  end
  have.counted = true
end

-- The books know what was really used; whoever has not been heard of since has nothing any more.
local function trust(key, have, books)
  have.used = math.max(have.used, books)
  redis.call('HSET', key, 'u', text(have.used))
  for name, lease in pairs(have.leases) do
    if name ~= owner and lease.ends <= now then
      redis.call('HDEL', key, 'l:' .. name)
      have.leases[name] = nil
    end
  end
end

local function give_back(key, have, amount)
  for at = second - SPAN, second do
    local had = have.buckets[at]
    if had and amount > 0 then
      local part = math.min(had, amount)
      amount, have.used = amount - part, have.used - part
      have.buckets[at] = had - part
      redis.call('HSET', key, 'b:' .. text(at), text(had - part))
    end
  end
end

local function use(key, have, kind, amount)
  if amount == 0 or kind == 's' then return end
  if kind == 'm' and amount < 0 then return give_back(key, have, -amount) end
  have.used = math.max(0, have.used + amount)
  if kind == 'c' then redis.call('HSET', key, have.counted and 'u' or 'x', text(have.used))
  else
    have.buckets[second] = (have.buckets[second] or 0) + amount
    redis.call('HSET', key, 'b:' .. text(second), text(have.buckets[second]))
  end
end

local function room_ms(have, kind, till, lacking)
  if kind == 'c' then return till * 1000 - now end
  if kind == 'm' then
    for at = second - SPAN, second do
      lacking = lacking - (have.buckets[at] or 0)
      if lacking <= 0 then return (at + SPAN + 1) * 1000 - now end
    end
  end
  return 1000
end

local function serve(key, base)
  local function given(i) return tonumber(ARGV[base + i]) end
  local limit, kind = given(1), ARGV[base + 2]
  local taken, untaken, taken_before, untaken_before = given(7), given(8), given(9), given(10)
  local held, idle, need, least, ahead, books = given(11), given(12), given(13), given(14), given(15), given(16)
  local have = read(key)
  if kind == 's' or (kind == 'm' and not (lost and now < lost + (SPAN + 1) * 1000)) then have.counted = true end
  if not is_open then books = -1 end
  local is_early = books >= 0 and kind == 'c' and have.counted and not have_told_since(now - given(18) + 1)
  if is_early then books = -1 end
  if not have.counted and books < 0 and given(17) == 0 then return {0, 0, 0, 0, 1, lease_ms, 0, 0, 0, 0} end
  local grace, till, age = 0, FOREVER, FOREVER
  if kind == 'm' then
    grace = (SPAN + 1) * 1000
    age_buckets(key, have)
  elseif kind == 'c' then
    grace = FOREVER
    till = enter_window(key, have, {given(3), given(4), given(5), given(6)})
    age = now - have.window * 1000
    if books >= 0 and have.counted then trust(key, have, books) end
  end
  if books >= 0 and not have.counted then count(key, have, kind, books) end
  local mine = have.leases[owner]
  if mine and mine.ends + (mine.amount > 0 and grace or SPAN * 1000) <= now then mine = nil end
  -- The sums only grow: a smaller one is an old report that comes late.
  if mine then taken, untaken = math.max(taken, mine.taken), math.max(untaken, mine.untaken) end
  use(key, have, kind, taken - (mine and mine.taken or taken_before))
  use(key, have, kind, (mine and mine.untaken or untaken_before) - untaken)
  if not mine then idle = 0 end
  local leased, elsewhere, ended = others(key, have, grace)
  local available = limit - have.used - leased - held - idle
  -- More is out than there is: the limit was lowered, or processes went on alone. It is taken back: from what is
  -- idle now, and from what requests give back that are under way.
  local cut = math.max(0, -available)
  idle, available = math.max(0, idle - cut), math.max(0, available)
  local granted, wait = 0, 0
  local is_known = have.counted and not (is_early and given(17) == 1)
  local may_grant = is_open and is_known
  if not may_grant then cut, available, need, ahead = 0, 0, 0, 0 end
  if need > 0 then
    if available >= least then granted = math.min(need, available)
    else wait = room_ms(have, kind, till, least - available) end
  end
  local ends = math.min(now + lease_ms, till < FOREVER and till * 1000 or FOREVER)
  if wait == 0 and available > granted and ahead > 0 then
    granted = granted + math.min(ahead, math.floor((available - granted) / (2 * processes)))
  end
  local amount = held + idle + granted
  if amount > 0 or taken ~= taken_before or untaken ~= untaken_before then
    local lease = table.concat({text(amount), text(idle + granted), text(taken), text(untaken), text(ends)}, ' ')
    redis.call('HSET', key, 'l:' .. owner, lease)
  else redis.call('HDEL', key, 'l:' .. owner) end
  local keep = lease_ms + grace
  if kind == 'c' then keep = till * 1000 - now + 86400000 end
  redis.call('PEXPIRE', key, text(keep + 1000))
  local is_lost = mine and 0 or 1
  is_known = is_known and 1 or 0
  is_early = is_early and 1 or 0
  return {is_known, granted - cut, available - granted, elsewhere, is_lost, ends - now, age, wait, ended, is_early}
end

local replies = {text(processes), generation, is_open and '1' or '0', text(now)}
for i = 4, #KEYS do
  for _, number in ipairs(serve(KEYS[i], 6 + (i - 4) * 18)) do
    replies[#replies + 1] = text(number)
  end
end
return replies
"""
