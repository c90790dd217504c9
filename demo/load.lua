-- The demo's load for wrk: a fixed mix, and pauses, so that a small machine is busy but not full.

local mix = {
   { 20, function() return "/" end },
   { 21, function() return "/users/" .. math.random(1, 5000) end },
   { 3, function() return "/shelf/" .. math.random(1, 500) end },
   { 3, function() return "/pay/" .. math.random(1, 5000) end },
   { 3, function() return "/sold/" .. math.random(1, 500) end },
   { 10, function() return "/cpu" end },
   { 15, function() return "/sleep" end },
   { 10, function() return "/quote/" .. math.random(1, 500) end },
   { 5, function() return "/order/" .. math.random(1, 500) end },
   { 6, function() return "/fail" end },
   { 4, function() return "/files/large.bin" end },
}

function init(args)
   math.randomseed(7)
end

function request()
   local dice = math.random(1, 100)
   for _, entry in ipairs(mix) do
      dice = dice - entry[1]
      if dice <= 0 then
         return wrk.format("GET", entry[2]())
      end
   end
   return wrk.format("GET", "/")
end

-- Milliseconds before a connection's next request: 8 connections make about 80 requests a second.
function delay()
   return math.random(20, 120)
end
